"""What the matcher's longer commands do.

`audit_lists`  `matcher audits ls` and `auditors`: the drawn requests and each auditor
`pay_audits`   `matcher audits pay`: every auditor paid what it is owed, exactly once
`own_network`  `matcher network deploy` and `sign`: an owner's network, and its file
`administer`   what an owner or a guardian may still do, and what it means
`network_commands`  these two as commands, beside those that every program has
`simulate`     methods side by side on a file or on the live fleet
`compare`      where two matchers see the network otherwise
"""
