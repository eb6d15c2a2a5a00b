"""Controlled studies: frozen before they run, judged by one number; and two results compared task by task."""
