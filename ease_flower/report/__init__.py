"""The report of a run: data, main table, charts, pictures, one HTML page."""

from ease_flower.report.data import ReportData
from ease_flower.report.page import render_report
from ease_flower.report.table import summary_table

__all__ = ["ReportData", "render_report", "summary_table"]
