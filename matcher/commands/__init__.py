"""What the matcher's longer commands do.

`audit_lists`  `matcher audits ls` and `auditors`: the drawn requests and each auditor
`pay_audits`   `matcher audits pay`: every auditor paid what it is owed, exactly once
`own_network`  `matcher network deploy` and `sign`: an owner's network, and its file
`compare`      where two matchers see the network otherwise
"""
