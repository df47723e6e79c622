"""moet_* metrics on vLLM's own /metrics, and the audit of a start.

    worker's steps        steps.py        counts what a step is handed: a few integers, no lock, no I/O
    mapped layers' calls  reads.py        count what they read where it is decided, on the device
    worker's reporter     reporter.py     a thread: every second one small file (facts.py gathers what is in it),
                          prefill_log.py  and a line during a long prefill
    a folder              rank-N.json     written under another name, renamed: a reader sees all of it or nothing
    API process           collector.py    a scrape reads the files; table.py says which metrics there are
                          prompt_rate.py  vLLM's logger takes its prompt throughput from there too

The worker is another process than the API server, whose registry alone ``/metrics`` shows. attach.py hooks all of it
into the worker once the model is built; serving.py reads what vLLM decided, for the audit.
"""
