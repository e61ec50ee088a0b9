-- Only cohorts whose driver this is: another one may have taken them over.
AND cohort = any(%(cohorts)s::int[])
AND driver = %(driver)s
