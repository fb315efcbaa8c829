"""Which pipelines serve best, by throughput and latency together? `scheduler.utility.plan.plan`
answers.
"""
