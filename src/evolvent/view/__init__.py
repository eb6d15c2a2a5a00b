"""Reports: one offline page per run, and the plain table at its end."""

from evolvent.view.data import ReportData, read_run
from evolvent.view.page import page, report
from evolvent.view.tables import summary

__all__ = ["ReportData", "page", "read_run", "report", "summary"]
