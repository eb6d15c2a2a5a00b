"""Model-written code runs here, isolated: values come out, never verdicts."""
