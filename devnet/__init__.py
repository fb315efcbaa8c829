"""A whole network on one machine, its faults, and the demo.

`cli`                    the `devnet` program
`lifecycle`              what `devnet up`, `down`, `status` and the fault switches do
`layout`                 where a devnet keeps its things: a home for every party
`accounts`               named wallets from Anvil's public phrase
`fleets`                 which machines a devnet has, how slow and how far away they are
`network`                chain, contracts, matcher, miners and jurors, each in its own process
`ports`                  free ports of this machine
`processes`              other programs started, known to be ready, and none left behind
`warm`                   many programs started without many imports of the same libraries
`anvil`                  a local chain
`deploy`                 the contracts deployed, a model registered
`models/`                where small real models come from, and what the chain calls them
`links/`                 links that are as slow and faulty as those between far machines
`faults`                 how a machine lies
`faulty_miner`           the product's miner with a hook that spoils or slows its shard
`story`                  `devnet demo`: the first paid answer and the slashed liar, told live
`prompts.jsonl`          the requests of the demo
`doubted_prompts.jsonl`  the requests of the demo's dispute
`ledger`                 who holds what in every contract, and what a job must have changed
`results`                what the devnet's commands print with --json
"""
