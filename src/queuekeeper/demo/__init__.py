"""A day of the product on private servers: a file per step, put in order by :mod:`queuekeeper.demo.program`."""
