"""What does the gateway add between a client and the pipeline, and what does it hold under load?"""
