"""Where the keys and values of requests lie.

`heap`           freed memory: back to the system after loading, kept while serving
`sizing`         how many pages the memory holds
`layout`         what a page holds, and which layers share one
`pool`           the memory behind the pages
`pages`          which pages are taken, by how many holders
`prefix`         chunks of earlier prompts that a new prompt can go on with
`paged_kv`       the pages of one request
`row_attention`  single rows that attend to their pages where they lie
`offload`        pages of one microbatch, swapped while another one computes
`page_copies`    copies of pages past the caches
`kv`             what a shard without pages remembers of a request
"""
