"""Published figures: their table, their logs scored again, and campaigns that run their configurations here."""
