"""What is signed, committed and sent, and what can go wrong.

`types`       the frozen values that are signed, committed, stored and sent
`ids`         what an id is, and how it is printed, shortened and found again
`units`       how amounts are written, read exactly, and priced
`hashing`     the hashes of a worker: C of ours where it can be compiled, else Python
`keccak.c`    Keccak-256
`rows.c`      SHA-256 over rows
`sha256.h`    SHA-256 of several messages side by side
`compiled`    C of ours, compiled for this very processor
`commit`      which root commits to which bytes (`docs/protocol.md` §3)
`signing`     a message as a digest and a signature: EIP-712 (`docs/protocol.md` §2)
`receipts`    whether receipts are what stages signed, and tell one story
`shares`      layers divided over machines by their memory
`records`     what machines say of themselves in the swarm, signed
`network_file`  what a network is, as its owner signs it
`foreign`     JSON that a stranger wrote, and how much of it an error repeats
`wire`        every message on a stream, its framing and its limits
`whole_file`  a file that is replaced as a whole
`errors`      what can go wrong, and what each mistake tells the person and the script
`abi/`        the interfaces of the contracts, written by the build
"""
