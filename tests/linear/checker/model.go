package main

import (
	"strconv"

	"github.com/anishathalye/porcupine"
)

// register is one key. A version of 0 on a present key is not known yet: a write whose answer was lost made it. The first
// answer that tells the version settles it, and it must be above floor, the highest version the key is known to have had.
type register struct {
	present bool
	value   string
	version int64
	floor   int64
}

// state is a group of keys that calls touch together.
type state [keysMax]register

func (r register) top() int64 {
	if r.version > r.floor {
		return r.version
	}
	return r.floor
}

// pinned is the register once its version is told to be v.
func (r register) pinned(v int64) (register, bool) {
	if !r.present {
		return r, v == 0
	}
	if r.version != 0 {
		return r, r.version == v
	}
	if v <= r.floor {
		return r, false
	}
	r.version = v
	return r, true
}

func (r register) written(value string, version int64) register {
	return register{present: true, value: value, version: version, floor: r.top()}
}

func (r register) removed() register { return register{floor: r.top()} }

// shown is the value an answer carries of the register.
func (r register) shown() string {
	if !r.present {
		return "null"
	}
	return r.value
}

// path is one way an op can go: the register as it was (its version perhaps pinned), as it is afterwards, and why the op lost.
type path struct {
	before register
	after  register
	lost   string
}

// conditions gives the ways a condition can go. known restricts them to what an answer says of the version.
func (r register) condition(expect *int64) []path {
	if expect == nil {
		return []path{{before: r, after: r}}
	}
	if *expect == 0 {
		if r.present {
			return []path{{before: r, after: r, lost: "exists"}}
		}
		return []path{{before: r, after: r}}
	}
	if !r.present {
		return []path{{before: r, after: r, lost: "absent"}}
	}
	if r.version != 0 {
		lost := ""
		if r.version != *expect {
			lost = "version"
		}
		return []path{{before: r, after: r, lost: lost}}
	}
	ways := []path{{before: r, after: r, lost: "version"}}
	if holds, ok := r.pinned(*expect); ok {
		ways = append(ways, path{before: holds, after: holds})
	}
	return ways
}

// ways gives every way a writing op or check can go on a register. The version of what it wrote is 0 in them.
func (o op) ways(r register) []path {
	switch o.Op {
	case "put":
		return written(r.condition(o.Expect), text(o.Value))
	case "putIfAbsent":
		zero := int64(0)
		return written(r.condition(&zero), text(o.Value))
	case "check":
		return r.condition(o.Expect)
	case "delete":
		ways := r.condition(o.Expect)
		for i := range ways {
			if ways[i].lost == "" && !ways[i].before.present && o.Expect == nil {
				ways[i].lost = "absent"
			}
			if ways[i].lost == "" {
				ways[i].after = ways[i].before.removed()
			}
		}
		return ways
	}
	return []path{o.increment(r)}
}

func written(ways []path, value string) []path {
	for i := range ways {
		if ways[i].lost == "" {
			ways[i].after = ways[i].before.written(value, 0)
		}
	}
	return ways
}

func (o op) increment(r register) path {
	current := int64(0)
	if r.present {
		n, ok := number(r.value)
		if !ok {
			return path{before: r, after: r, lost: "type"}
		}
		current = n
	}
	sum := current + o.Delta
	if (o.Min != nil && sum < *o.Min) || (o.Max != nil && sum > *o.Max) {
		return path{before: r, after: r, lost: "limit"}
	}
	return path{before: r, after: r.written(strconv.FormatInt(sum, 10), 0)}
}

// told reduces a way to what the answer of the op says; false when the answer contradicts it.
func (o op) told(w path, res result) (path, bool) {
	applied := res.Applied != nil && *res.Applied
	if res.Applied == nil || applied != (w.lost == "") || (!applied && res.Reason != w.lost) {
		return w, false
	}
	if !applied {
		return o.toldLoss(w, text(res.Value), res.Version)
	}
	switch o.Op {
	case "check":
		before, ok := w.before.pinned(res.Version)
		w.before, w.after = before, before
		return w, ok
	case "delete":
		before, ok := w.before.pinned(res.Version)
		w.before, w.after = before, before.removed()
		return w, ok && text(res.Value) == before.shown()
	}
	if res.Version <= w.after.floor || text(res.Value) != w.after.value {
		return w, false
	}
	w.after.version = res.Version
	return w, true
}

// toldLoss: a lost op shows the row that is there; with reason type it shows the value 0.
func (o op) toldLoss(w path, value string, version int64) (path, bool) {
	before, ok := w.before.pinned(version)
	if !ok || (w.lost == "version" && o.Expect != nil && version == *o.Expect) {
		return w, false
	}
	w.before, w.after = before, before
	want := before.shown()
	if w.lost == "type" || (w.lost == "limit" && !before.present) {
		want = "0"
	}
	return w, value == want
}

// read is a get; its answer may pin a version.
func (s state) read(key int, found bool, value string, version int64) (state, bool) {
	r := s[key]
	if !found {
		return s, !r.present
	}
	if !r.present || r.value != value {
		return s, false
	}
	pinned, ok := r.pinned(version)
	s[key] = pinned
	return s, ok
}

func (s state) readMany(o op, res result) (state, bool) {
	if len(res.Rows)+len(res.Missing) != len(o.Keys) {
		return s, false
	}
	ok := true
	for _, r := range res.Rows {
		if s, ok = s.read(r.Key, true, text(r.Value), r.Version); !ok {
			return s, false
		}
	}
	for _, key := range res.Missing {
		if s, ok = s.read(key, false, "", 0); !ok {
			return s, false
		}
	}
	return s, true
}

// answered gives the states after a call whose results are known.
func (c *call) answered(from state, results []result) []state {
	states := []state{from}
	for _, i := range c.order {
		var next []state
		for _, s := range states {
			next = append(next, c.Ops[i].answered(s, results[i])...)
		}
		states = next
	}
	return states
}

func (o op) answered(s state, res result) []state {
	switch o.Op {
	case "get":
		if next, ok := s.read(o.Key, res.Found != nil && *res.Found, text(res.Value), res.Version); ok && res.Found != nil {
			return []state{next}
		}
		return nil
	case "getMany":
		if next, ok := s.readMany(o, res); ok {
			return []state{next}
		}
		return nil
	}
	var states []state
	for _, w := range o.ways(s[o.Key]) {
		if told, ok := o.told(w, res); ok && !(o.Required && told.lost != "") {
			next := s
			next[o.Key] = told.after
			states = append(states, next)
		}
	}
	return states
}

// rolledBack gives the states after a call of which a required op lost: as before, the versions it told pinned.
func (c *call) rolledBack(from state, v *verdict) []state {
	for _, i := range c.order {
		o := c.Ops[i]
		if o.Op == "get" || o.Op == "getMany" {
			continue
		}
		var states []state
		for _, w := range o.ways(from[o.Key]) {
			if i == v.FailedIndex {
				told, ok := o.toldLoss(w, text(v.Value), v.Version)
				if ok && o.Required && w.lost == v.KvReason && w.lost != "" {
					next := from
					next[o.Key] = told.before
					states = append(states, next)
				}
			} else if o.Required && w.lost == "" {
				next := from
				next[o.Key] = w.before
				states = append(states, next)
			}
		}
		if i == v.FailedIndex {
			return states
		}
		if o.Required {
			// it comes first and must have held; one way at most does
			if len(states) == 0 {
				return nil
			}
			from = states[0]
		}
	}
	return nil
}

// unanswered gives every state a call may have left when its answer was lost.
func (c *call) unanswered(from state) []state {
	states := []state{from}
	lost := false
	for _, i := range c.order {
		o := c.Ops[i]
		if o.Op == "get" || o.Op == "getMany" {
			continue
		}
		var next []state
		for _, s := range states {
			for _, w := range o.ways(s[o.Key]) {
				if o.Required && w.lost != "" {
					lost = true
					continue
				}
				to := s
				to[o.Key] = w.after
				next = append(next, to)
			}
		}
		states = next
	}
	if lost {
		states = append(states, from)
	}
	return states
}

func step(s, input, output interface{}) []interface{} {
	c, from := input.(*call), s.(state)
	var states []state
	switch a := output.(*answer); {
	case a == nil:
		states = c.unanswered(from)
	case a.Rollback != nil:
		states = c.rolledBack(from, a.Rollback)
	default:
		states = c.answered(from, a.Results)
	}
	out := make([]interface{}, len(states))
	for i := range states {
		out[i] = states[i]
	}
	return out
}

func model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init:  func() []interface{} { return []interface{}{state{}} },
		Step:  step,
		Equal: func(one, other interface{}) bool { return one.(state) == other.(state) },
	}
	return m.ToModel()
}
