"""Several logs together: rules between runs, score, system description, package, verification, audit."""
