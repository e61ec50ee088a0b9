"""Old names of the operators of one session; see :mod:`queuekeeper.airflow.retired`."""

from queuekeeper.airflow.retired import names_of

__getattr__ = names_of(__name__)
