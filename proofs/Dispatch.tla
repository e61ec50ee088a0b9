------------------------------- MODULE Dispatch -------------------------------
(* Events of transactions that commit late are dispatched by snapshots, and read by groups with a cursor.

   A transaction publishes one event. Its number is given when it begins and grows, as PostgreSQL's transaction ids do;
   others see it from its commit on. A poll is one transaction of the dispatcher: all of it or, if it dies, nothing. What
   others do between its snapshot and its commit it does not see. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Transactions, \* their numbers: 1..Transactions
    Groups,
    Chunk,        \* most events that a poll dispatches
    Crashes       \* so often, in all, a reader or the dispatcher dies

VARIABLES
    begun,      \* transactions that have begun
    open,       \* those at work
    committed,  \* those whose events others see
    closed,     \* snapshot up to which all was dispatched: the first number it does not know, and those then at work
    looked,     \* snapshot of the poll at work, or Nothing
    window,     \* snapshot that is dispatched in chunks, and the last number taken of it; or Nothing
    dispatches, \* numbers of the events in the order of dispatch
    stored,     \* numbers of the events that are stored
    cursor,     \* group -> how many dispatches it has confirmed
    reading,    \* group -> how many dispatches it has read, which is its cursor after it died
    handled,    \* group -> numbers that it has handled: what has to be true
    crashes

vars == <<begun, open, committed, closed, looked, window, dispatches, stored, cursor, reading, handled, crashes>>

Nothing == <<>>
Range(s) == {s[i] : i \in DOMAIN s}
Min(S) == CHOOSE n \in S : \A m \in S : n <= m

Snapshot == <<begun + 1, open>>
IsVisible(n, snapshot) == n < snapshot[1] /\ n \notin snapshot[2] /\ n \in committed

Init ==
    /\ begun = 0
    /\ open = {}
    /\ committed = {}
    /\ closed = <<1, {}>>
    /\ looked = Nothing
    /\ window = Nothing
    /\ dispatches = <<>>
    /\ stored = {}
    /\ cursor = [g \in Groups |-> 0]
    /\ reading = [g \in Groups |-> 0]
    /\ handled = [g \in Groups |-> {}]
    /\ crashes = 0

Begin ==
    /\ begun < Transactions
    /\ begun' = begun + 1
    /\ open' = open \union {begun + 1}
    /\ UNCHANGED <<committed, closed, looked, window, dispatches, stored, cursor, reading, handled, crashes>>

Commit(n) ==
    /\ n \in open
    /\ open' = open \ {n}
    /\ committed' = committed \union {n}
    /\ stored' = stored \union {n}
    /\ UNCHANGED <<begun, closed, looked, window, dispatches, cursor, reading, handled, crashes>>

Abort(n) ==
    /\ n \in open
    /\ open' = open \ {n}
    /\ UNCHANGED <<begun, committed, closed, looked, window, dispatches, stored, cursor, reading, handled, crashes>>

(* poll_for_events takes a snapshot, unless it goes on with a window. *)
Look ==
    /\ looked = Nothing /\ window = Nothing
    /\ looked' = Snapshot
    /\ UNCHANGED <<begun, open, committed, closed, window, dispatches, stored, cursor, reading, handled, crashes>>

(* The dispatcher is killed at a poll: the next one looks anew. *)
Forget ==
    /\ crashes < Crashes
    /\ looked # Nothing
    /\ looked' = Nothing
    /\ crashes' = crashes + 1
    /\ UNCHANGED <<begun, open, committed, closed, window, dispatches, stored, cursor, reading, handled>>

(* Its commit: what is visible in the window, was not in the one before, and was not taken by an earlier chunk. *)
Waiting(snapshot, passed) ==
    {n \in stored : IsVisible(n, snapshot) /\ ~IsVisible(n, closed) /\ n > passed}

RECURSIVE InOrder(_)
InOrder(S) == IF S = {} THEN <<>> ELSE <<Min(S)>> \o InOrder(S \ {Min(S)})

Poll ==
    LET snapshot == IF window = Nothing THEN looked ELSE window[1]
        passed == IF window = Nothing THEN 0 ELSE window[2]
        waiting == InOrder(Waiting(snapshot, passed))
        chunk == IF Len(waiting) > Chunk THEN SubSeq(waiting, 1, Chunk) ELSE waiting
        is_cut == Len(chunk) = Chunk
    IN
    /\ window # Nothing \/ looked # Nothing
    /\ looked' = Nothing
    /\ dispatches' = dispatches \o chunk
    /\ window' = IF is_cut THEN <<snapshot, chunk[Len(chunk)]>> ELSE Nothing
    /\ closed' = IF is_cut THEN closed ELSE snapshot
    /\ UNCHANGED <<begun, open, committed, stored, cursor, reading, handled, crashes>>

(* read_next_events, and the work on one event. *)
Read(g) ==
    /\ reading[g] < Len(dispatches)
    /\ dispatches[reading[g] + 1] \in stored
    /\ reading' = [reading EXCEPT ![g] = @ + 1]
    /\ handled' = [handled EXCEPT ![g] = @ \union {dispatches[reading[g] + 1]}]
    /\ UNCHANGED <<begun, open, committed, closed, looked, window, dispatches, stored, cursor, crashes>>

(* set_group_cursor: after the work, up to the end of a page. *)
Confirm(g) ==
    /\ \E place \in (cursor[g] + 1)..reading[g] : cursor' = [cursor EXCEPT ![g] = place]
    /\ UNCHANGED <<begun, open, committed, closed, looked, window, dispatches, stored, reading, handled, crashes>>

(* A reader is killed: the next one begins at the cursor. *)
Die(g) ==
    /\ crashes < Crashes
    /\ cursor[g] < reading[g]
    /\ reading' = [reading EXCEPT ![g] = cursor[g]]
    /\ crashes' = crashes + 1
    /\ UNCHANGED <<begun, open, committed, closed, looked, window, dispatches, stored, cursor, handled>>

(* Maintenance drops a partition, here an event, when all groups have confirmed it. *)
Drop(n) ==
    /\ n \in stored
    /\ \E place \in DOMAIN dispatches : dispatches[place] = n /\ \A g \in Groups : place <= cursor[g]
    /\ stored' = stored \ {n}
    /\ UNCHANGED <<begun, open, committed, closed, looked, window, dispatches, cursor, reading, handled, crashes>>

Next ==
    \/ Begin \/ Look \/ Poll \/ Forget
    \/ \E n \in 1..Transactions : Commit(n) \/ Abort(n) \/ Drop(n)
    \/ \E g \in Groups : Read(g) \/ Confirm(g) \/ Die(g)

(* The dispatcher polls, and readers read and confirm; everything else may happen or not. *)
Fairness == WF_vars(Look) /\ WF_vars(Poll) /\ \A g \in Groups : WF_vars(Read(g)) /\ WF_vars(Confirm(g))

Spec == Init /\ [][Next]_vars /\ Fairness

(* What is visible in the snapshot that was dispatched is in a dispatch: a late commit is not passed over. *)
NothingIsPassedOver == {n \in committed : IsVisible(n, closed)} \subseteq Range(dispatches)

(* Nothing is dispatched twice, or before its commit. *)
OnceAndCommitted ==
    /\ Range(dispatches) \subseteq committed
    /\ Cardinality(Range(dispatches)) = Len(dispatches)

(* A group has handled all that it has confirmed, and all that it has still to read is stored. *)
NothingIsSkipped ==
    \A g \in Groups : \A place \in DOMAIN dispatches :
        /\ place <= cursor[g] => dispatches[place] \in handled[g]
        /\ place > cursor[g] => dispatches[place] \in stored

(* Every event whose transaction commits is handled by every group. *)
EverythingArrives == \A g \in Groups, n \in 1..Transactions : n \in committed ~> n \in handled[g]
=============================================================================
