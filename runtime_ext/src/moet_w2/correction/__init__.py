"""FP4 correction: hot experts of eligible layers get their full MXFP4 codes back.

policy.py     which experts should hold a slot; a pure function of counts, residency and eligibility
codes.py      how an expert's FP4 codes lie in a row, and the way back
store.py      the pack file that rows come from
transfer.py   copies and marks: where a CPU and a GPU differ
pool.py       the slots, the device's slot table and its host mirror
manager.py    the thread that moves rows
tier.py       all of it for one worker; sizing.py how many slots ``auto`` is; build.py the attachment to vLLM
metrics.py    what it reports
trace.py      recorded routing; simulate.py what a policy would have made of it
"""
