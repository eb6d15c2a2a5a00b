"""A generated back office: five applications, their forms, tables and validations, and work to be done in them."""
