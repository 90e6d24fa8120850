"""Compliance: may this log be published, and as what package. Needs neither Paddle nor DALI nor MPI."""
