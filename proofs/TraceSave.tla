------------------------------ MODULE TraceSave ------------------------------
(* What writers, a reader and TBMQ have written down of a session, against the model of its saves. A call of a script for
   several messages is several lines. docs/proofs.md says what is mapped. *)
EXTENDS Save, Replay

VARIABLE names \* of messages in the order of arrival: who has stored it, its number, packet id and serial

writers == <<known, passed, done, must_trim, late, losses>>

TraceInit == Init /\ ReplayInit /\ names = <<>>

Least(a, b) == IF a < b THEN a ELSE b
Most(a, b) == IF a > b THEN a ELSE b
Stays == UNCHANGED <<stored, writers, sent, names>>

(* The writer hears of a message that is stored. One that hears that there are too many trims when its batch is over. *)
Hears(line) ==
    LET w == line.by IN
    IF line.heard /\ ~line.lost THEN
        /\ line.number <= done[w] + 1
        /\ line.number % Calls = 1 /\ line.number > done[w] => w \notin must_trim
        /\ done' = [done EXCEPT ![w] = Most(@, line.number)]
        /\ known' = [known EXCEPT ![w] = last']
        /\ must_trim' = IF Cardinality(Waiting') > Limit THEN must_trim \union {w} ELSE must_trim \ {w}
        /\ UNCHANGED <<passed, late, losses>>
    ELSE UNCHANGED writers

(* Try, when its writer hears of it, else Lose and Arrive. *)
Saves(line) ==
    LET call == <<line.by, line.number, line.expected, line.id>> IN
    /\ IsSaved(call) /\ Save(call) /\ Hears(line) /\ sent' = sent
    /\ names' = Append(names, <<line.by, line.number, line.id, serial'[line.id]>>)
    /\ line.lost \/ serial'[line.id] = line.serial
    /\ line.lost \/ line.more \/ Cardinality(Waiting') = line.references

Conflicts(line) ==
    /\ \A n \in line.numbers : ~Recorded(<<line.by, n>>)
    /\ line.last = last
    /\ line.in_use = IF last # line.expected THEN {} ELSE {i \in line.ids : payload[i] # 0}
    /\ last = line.expected => line.in_use # {}
    /\ Stays

Replays(line) ==
    /\ records[line.by][1] = Batch(line.number) /\ Recorded(<<line.by, line.number>>)
    /\ <<line.by, line.number, line.id, line.serial>> \in Range(names)
    /\ UNCHANGED <<stored, sent, names>> /\ Hears(line)

NoLongerOver(line) ==
    /\ must_trim' = IF line.heard /\ Cardinality(Waiting') <= Limit THEN must_trim \ {line.by} ELSE must_trim
    /\ UNCHANGED <<known, passed, done, late, losses>>

Reads(line) ==
    /\ line.last = last /\ line.references = Cardinality(Waiting) /\ line.highest = Highest
    /\ line.sent = IF hash.delivered = 0 THEN 0 ELSE Delivered
    /\ line.serial = hash.serial /\ line.packet_id = hash.packet_id /\ line.lasts = hash.lasts
    /\ UNCHANGED <<stored, sent, names>> /\ NoLongerOver(line)

Lists(line) ==
    LET those == {i \in Waiting : serial[i] > line.after} IN
    /\ Len(line.found) = Least(line.most, Cardinality(those))
    /\ \A k \in DOMAIN line.found :
        LET i == line.found[k][1] IN
        i \in those /\ serial[i] = line.found[k][2] /\ k = Cardinality({j \in those : serial[j] <= serial[i]})
    /\ Stays

(* Which messages may go was listed before; the oldest of those that are still there do. One that was sent goes when all
   others are gone that its writer had read of. *)
Trims(line) ==
    LET over == Cardinality(Waiting) - line.most
        there == SelectSeq(line.wanted, LAMBDA pair : serial[pair[1]] = pair[2])
        going == IF over <= 0 THEN {} ELSE {there[k][1] : k \in 1..Least(over, Len(there))}
    IN
    /\ \A i \in going : \A j \in Waiting \ going : serial[j] > line.after => serial[i] < serial[j]
    /\ \A i \in going : serial[i] <= line.sent =>
        \A j \in Waiting \ going : serial[j] <= line.sent \/ serial[j] > line.highest
    /\ Remove(going) /\ UNCHANGED <<set_ends, sent, names>>
    /\ line.lost \/ (line.trimmed = Cardinality(going) /\ line.references = Cardinality(Waiting'))
    /\ NoLongerOver(line)

Delivers(line) ==
    LET upto == Least(line.upto, Most(hash.serial, Highest)) IN
    IF line.moved \/ line.lost THEN DeliverUpTo(upto) /\ names' = names
    ELSE (Waiting = {} \/ Delivered >= upto) /\ Stays

Acks(line) ==
    IF line.removed \/ (line.lost /\ serial[line.id] = line.serial) THEN
        Ack /\ serial[line.id] = line.serial /\ serial'[line.id] = 0 /\ names' = names
    ELSE serial[line.id] # line.serial /\ Stays

Adds(line) ==
    /\ Add /\ (line.lost \/ last' = line.id)
    /\ names' = Append(names, <<line.by, line.number, last', serial'[last']>>)

Happens(line) ==
    CASE line.do = "save" -> Saves(line)
      [] line.do = "conflict" -> Conflicts(line)
      [] line.do = "replay" -> Replays(line)
      [] line.do = "forgotten" -> ~line.heard /\ (\A n \in line.numbers : records[line.by][1] > Batch(n)) /\ Stays
      [] line.do = "read" -> Reads(line)
      [] line.do = "list" -> Lists(line)
      [] line.do = "look" -> line.free = {i \in line.ids : payload[i] = 0} /\ Stays
      [] line.do = "fetch" ->
            /\ line.found = {<<i, names[payload[i]][1], names[payload[i]][2]>> : i \in {i \in line.ids : payload[i] # 0}}
            /\ Stays
      [] line.do = "trim" -> Trims(line)
      [] line.do = "deliver" -> Delivers(line)
      [] line.do = "ack" -> Acks(line)
      [] line.do = "add" -> Adds(line)
      [] line.do = "sweep" -> line.removed = 0 /\ Stays
      [] line.do = "give up" ->
            /\ must_trim' = must_trim \ {line.by}
            /\ UNCHANGED <<stored, known, passed, done, late, losses, sent, names>>

TraceNext ==
    \E lane \in DOMAIN Lanes : (TakesLine(lane) /\ Happens(Line(lane))) \/ (PassesOver(lane) /\ Stays)

(* Without what follows from the rest. *)
View == <<replayed, payload, serial, set_ends, last, last_ends, hash, records, done, must_trim, sent, names>>
=============================================================================
