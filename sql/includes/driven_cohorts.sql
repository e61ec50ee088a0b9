-- Only cohorts that this driver still drives: another driver may have taken them over.
AND cohort = any(%(cohorts)b::int[])
AND driver = %(driver)s
