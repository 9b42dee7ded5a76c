"""Compaction of logs: a worker rewrites sealed segments, and the broker checks the result and swaps it in.

    module          for
    records.py      opens one batch: its keys, and the batch without some of its records
    offset_map.py   the latest offset of each key, in limited memory
    filter.py       which records of a batch survive
    job.py          one job: reads sealed segments, writes replacements
    worker.py       the process that runs jobs
    ports.py        the interface of a worker, and a worker that runs jobs inside the process
    process.py      starts the process, and talks to it
    swap.py         checks a replacement, and finishes a swap that a crash interrupted

`broker.log.cleaner` chooses logs by the rules in `broker.core.cleaning`, and starts jobs.  `broker.log.checkpoints`
writes the facts of a swap.
"""
