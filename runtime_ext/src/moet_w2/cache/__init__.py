"""Ready planes on disk, so that the second start reads them instead of quantising the checkpoint again.

key.py          what makes two caches interchangeable, as one digest
layout.py       the files of a cache folder, and the block at the head of a payload
eligibility.py  which layers may be read, and a word for each that may not
publish.py      writing a layer so that a reader sees all of it or nothing
load.py         reading layers straight into their final place, several at a time
reads.py        one payload file: from the page cache, past it, or buffered
staging.py      the ring of pinned buffers between a file and a device
session.py      the cache as one worker process uses it
progress.py     a bar on a terminal, lines in a log
phases.py       the phases of a start, told at its end
contents.py     what in a cache is a server's, and what is foreign and never touched
admin.py        listing, verifying, pruning and exporting; commands.py: the same as `moet cache`

<root>/<digest>/key.json          the key, spelled out
                layer-042.w2      4 KiB head, then the layer in the canonical layout
                layer-042.json    sidecar: bytes and sha256 of the payload; written last, so it vouches
                .in-use           locked shared by every server that uses the folder, exclusively to prune
                .tmp-*            being written; locked by its writer while it lives
"""
