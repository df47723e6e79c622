"""FP4 correction: hot experts of eligible layers get their full MXFP4 codes back.

policy.py   which experts should hold a slot; a pure function of counts, residency and eligibility
codes.py    how an expert's FP4 codes lie in a row, and the way back
store.py    the pack file that rows come from
pool.py     the slots, the device's slot table and its host mirror
trace.py    recorded routing, and what a policy would have made of it
"""
