"""Strangers who dial, publish, upload and cancel, and what a neighbour notices.

`test_bodies`     bodies and prompts of a gateway that are too long
`test_uploads`    files without an end, too many of them, and a full disk
`test_batches`    batches of a key with a small rate, and too many at once
`test_free_work`      what can be had without paying: requests cut off, rows that nobody ordered
`test_proposals`      proposals that nobody opens, and those of others meanwhile
`test_credit`         what is done before it is paid for, by honest clients and by others
`test_bound`          the worth of what an order has for nothing, against the gas of opening it
`test_answers`        matchers and nodes that answer with bombs, or without end
`test_documents`      unknown fields by the million, and JSON that never ends
`test_model_folders`  counts, indexes and headers of no model
`fuzz`                inputs made of good ones by a few changes, and what parsers may do with them
`test_fuzz`           some hundred of them for each parser
`alarms`          what went wrong in a process that nobody was told of
`stage_inputs`    what peers of any standing may say of a job to its stages, and changes of it
`fuzz_stages`     such messages through real streams, beside an honest requester
`test_fuzz_stages`    some hundred of them, and a bug that is found
`test_looks`          questions that would have the chain looked at
`forging`             how a stranger forges records, as fast as it likes
`test_swarm`          records of throwaway keys, thousands of them, and who finds whom meanwhile
"""
