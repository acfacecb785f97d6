"""What the three lanes share: leases, outcomes, workers, long polls, batches and chores."""
