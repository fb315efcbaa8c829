"""Where keys live, and what signs with them.

`passwords`  how secrets enter a program: files and questions, never the command line
`keystore`   the wallets of a folder, and who may open them
`signer`     what signs, and keeps its key to itself
"""
