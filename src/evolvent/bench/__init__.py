"""Controlled studies, frozen before they run and decided by one number; and results compared task by task."""
