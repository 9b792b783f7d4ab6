"""Training: sessions, tasks, the trainer, schedules, seeds and resuming; the same for every kind of training."""
