"""The report on runs: load -> contents -> findings, tables, figures -> page, text, pictures."""
