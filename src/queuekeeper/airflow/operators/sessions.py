"""Old names of the operators of one session; see :mod:`queuekeeper.airflow.operators._retired`."""

from queuekeeper.airflow.operators._retired import names_of

__getattr__ = names_of(__name__)
