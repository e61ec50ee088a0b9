---------------------------- MODULE TraceDispatch ----------------------------
(* What publishers, dispatchers and consumers of events have written down, against the model of dispatch. A request for
   several events is several lines. docs/proofs.md says what is mapped. *)
EXTENDS Dispatch, Replay

VARIABLES
    reader,  \* group -> the connection that has read it last
    fetched  \* group -> how many dispatches that one has got; its handler works on them one after the other

told == <<reader, fetched>>

TraceInit == Init /\ ReplayInit /\ reader = [g \in Groups |-> 0] /\ fetched = [g \in Groups |-> 0]

Stays == UNCHANGED <<vars, told>>
Seen(snapshot) == (1..(snapshot[1] - 1)) \ snapshot[2]
SeenBy(line) == (1..(line.below - 1)) \ line.unseen
HasRest == window # Nothing /\ Waiting(window[1], window[2]) # {}

(* A poll that goes on with a window has its snapshot. *)
Looks(line) ==
    /\ UNCHANGED told
    /\ IF HasRest THEN Seen(window[1]) = SeenBy(line) /\ UNCHANGED vars ELSE Look /\ Seen(looked') = SeenBy(line)

(* What becomes of a transaction that was not told of its end: all its events are there, or none. *)
Ends(line) ==
    /\ UNCHANGED told
    /\ CASE line.how = "commit" -> Commit(line.number)
         [] line.how = "abort" -> Abort(line.number)
         [] line.number = line.of -> Commit(line.number) \/ Abort(line.number)
         [] OTHER -> IF line.of \in committed THEN Commit(line.number) ELSE Abort(line.number)

(* A page. Another connection begins at the cursor; it was free to, as the one before it is gone. *)
Reads(line) ==
    LET g == line.group
        from == IF line.first THEN cursor[g] ELSE fetched[g]
        to == from + Len(line.numbers)
    IN
    /\ line.first \/ reader[g] = line.session
    /\ to <= Len(dispatches) /\ SubSeq(dispatches, from + 1, to) = line.numbers
    /\ Range(line.numbers) \subseteq stored
    /\ line.full \/ to = Len(dispatches)
    /\ IF line.first /\ cursor[g] < reading[g] THEN Die(g) ELSE UNCHANGED vars
    /\ reader' = [reader EXCEPT ![g] = line.session]
    /\ fetched' = [fetched EXCEPT ![g] = to]

(* The work of a handler; that of a reader which has been replaced makes no difference. *)
Works(line) ==
    LET g == line.group IN
    /\ UNCHANGED told
    /\ IF reader[g] # line.session THEN UNCHANGED vars
       ELSE /\ reading[g] < fetched[g]
            /\ dispatches[reading[g] + 1] = line.number
            /\ Read(g)

(* A partition goes as a whole: as many of the model's steps at once, of which none hinders another. *)
Drops(line) ==
    /\ \A n \in line.numbers : ENABLED Drop(n)
    /\ stored' = stored \ line.numbers
    /\ UNCHANGED <<begun, open, committed, closed, looked, window, dispatches, cursor, reading, handled, crashes, told>>

Happens(line) ==
    CASE line.do = "begin" -> Begin /\ begun' = line.number /\ UNCHANGED told
      [] line.do = "end" -> Ends(line)
      [] line.do = "look" -> Looks(line)
      [] line.do = "poll" ->
            /\ Poll /\ UNCHANGED told
            /\ dispatches' = dispatches \o line.numbers
            /\ (window' # Nothing) = line.cut
      [] line.do = "idle" -> looked = Nothing /\ window = Nothing /\ Waiting(Snapshot, 0) = {} /\ Stays
      [] line.do = "read" -> Reads(line)
      [] line.do = "work" -> Works(line)
      [] line.do = "confirm" ->
            /\ reader[line.group] = line.session
            /\ Confirm(line.group) /\ dispatches[cursor'[line.group]] = line.number
            /\ UNCHANGED told
      [] line.do = "drop" -> Drops(line)
      [] line.do = "stored" -> stored = line.numbers /\ Stays

(* What nobody writes down: a dispatcher has died at its poll; a poll ends a window that has no rest, and takes the next. *)
Unwritten ==
    /\ UNCHANGED <<replayed, told>>
    /\ looked # Nothing \/ window # Nothing
    /\ \E lane \in DOMAIN Lanes : IsNext(lane) /\ Line(lane).do \in {"look", "idle"}
    /\ Forget \/ (window # Nothing /\ ~HasRest /\ Poll)

TraceNext ==
    \/ \E lane \in DOMAIN Lanes :
        (TakesLine(lane) /\ Happens(Line(lane))) \/ (PassesOver(lane) /\ UNCHANGED <<vars, told>>)
    \/ Unwritten

(* Without what follows from the rest. *)
View == <<replayed, open, committed, closed, looked, window, dispatches, stored, cursor, reading, told>>
=============================================================================
