"""What is typed about keys and money.

`wallets`   wallets made and imported, without a key on the command line
`balance`   `client balance`: what the wallet holds, what is locked, how long it lasts
`allow`     `client wallet allow`: who else may spend the prepaid balance, and how much
`withdraw`  prepaid money taken back: ask, wait, receive
`credit`    `auditor withdraw`: what disputes owe the wallet
"""
