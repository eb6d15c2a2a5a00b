"""What an agent believes, and when it knows enough: summaries of beliefs, detectors, outcomes; filters and planners."""
