"""The audits that a matcher pays for or goes by.

`audit_desk`  which requests an auditor is paid to look at, and what it found
`audit_book`  what was drawn, found, owed and paid
`reports`     what auditors say of operators, and what the matcher makes of it
"""
