-------------------------------- MODULE Replay --------------------------------
(* Traces: what processes have written down, to be replayed by a module that knows a model.

   Each line of a trace is one request to one server with its reply. It happened at some moment between the two; whoever
   has asked for it wrote its next line later. TLC looks for an order in which every line is a step of the model, with what
   the reply says. Where there is none, the system has done what the model does not allow. *)
EXTENDS Naturals, TLC, Traces

\* A model may have an Append of its own.
LOCAL INSTANCE Sequences

VARIABLES
    trace, \* its number
    taken, \* lane -> lines that have happened
    inside  \* lane whose next line belongs to the same request; 0: none

replayed == <<trace, taken, inside>>

Lanes == Traces[trace]
Line(lane) == Lanes[lane][taken[lane] + 1]
IsNext(lane) ==
    /\ taken[lane] < Len(Lanes[lane]) /\ inside \in {0, lane}
    /\ \A need \in Line(lane).needs : taken[need[1]] >= need[2]
IsOver == \A lane \in DOMAIN Lanes : taken[lane] = Len(Lanes[lane])

ReplayInit ==
    /\ trace \in DOMAIN Traces
    /\ taken = [lane \in DOMAIN Traces[trace] |-> 0]
    /\ inside = 0

TakesLine(lane) ==
    /\ IsNext(lane)
    /\ taken' = [taken EXCEPT ![lane] = @ + 1]
    /\ inside' = IF Line(lane).more THEN lane ELSE 0
    /\ trace' = trace

(* Whether a request whose reply is lost was carried out shows later. *)
PassesOver(lane) ==
    /\ IsNext(lane) /\ inside = 0 /\ Line(lane).lost
    /\ taken' = [taken EXCEPT ![lane] = @ + Line(lane).size]
    /\ UNCHANGED <<trace, inside>>

Progress ==
    LET RECURSIVE Sum(_)
        Sum(n) == IF n = 0 THEN 0 ELSE taken[n] + Sum(n - 1)
        reached == Sum(Len(taken))
    IN
    IF reached > TLCGet(trace) THEN TLCSet(trace, reached) /\ PrintT(ToString(<<"reached", trace, taken>>)) ELSE TRUE

ASSUME \A t \in DOMAIN Traces : TLCSet(t, 0)
=============================================================================
