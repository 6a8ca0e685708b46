package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// keysMax is how many keys one group may have: the state of the model is an array.
const keysMax = 4

// op is one KV op of a call, as it was sent. Keys are numbered within their group.
type op struct {
	Op       string          `json:"op"`
	Key      int             `json:"key"`
	Keys     []int           `json:"keys"`
	Value    json.RawMessage `json:"value"`
	Expect   *int64          `json:"expect"`
	Delta    int64           `json:"delta"`
	Min      *int64          `json:"min"`
	Max      *int64          `json:"max"`
	Required bool            `json:"required"`
}

// row is what an answer tells of one key.
type row struct {
	Key     int             `json:"key"`
	Value   json.RawMessage `json:"value"`
	Version int64           `json:"version"`
}

// result is the element of one op in an answer.
type result struct {
	row
	Applied *bool  `json:"applied"`
	Reason  string `json:"reason"`
	Found   *bool  `json:"found"`
	Rows    []row  `json:"rows"`
	Missing []int  `json:"missing"`
}

// verdict is the answer of a call of which a required op lost.
type verdict struct {
	FailedIndex int             `json:"failedIndex"`
	KvReason    string          `json:"kvReason"`
	Version     int64           `json:"version"`
	Value       json.RawMessage `json:"value"`
}

// answer is nil when it was lost: the call may have happened at any time after it was sent, or never.
type answer struct {
	Results  []result `json:"results"`
	Rollback *verdict `json:"rollback"`
}

// call is one line of the history.
type call struct {
	Client int     `json:"client"`
	Group  string  `json:"group"`
	Route  string  `json:"route"`
	Sent   int64   `json:"call"`
	Ended  *int64  `json:"return"`
	Ops    []op    `json:"ops"`
	Answer *answer `json:"answer"`

	order []int // of the ops, as the broker applies them: by key, ties by input; getMany last
	line  string
}

// readHistory returns the calls by group, and the groups' names in order.
func readHistory(input io.Reader) (map[string][]porcupine.Operation, []string, error) {
	groups := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, 16<<20)
	for number := 1; lines.Scan(); number++ {
		c := &call{line: lines.Text()}
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(c); err != nil {
			return nil, nil, fmt.Errorf("line %d: %v", number, err)
		}
		if err := c.prepare(); err != nil {
			return nil, nil, fmt.Errorf("line %d: %v", number, err)
		}
		ended := int64(math.MaxInt64)
		if c.Answer != nil {
			ended = *c.Ended
		}
		groups[c.Group] = append(groups[c.Group], porcupine.Operation{
			ClientId: c.Client, Input: c, Output: c.Answer, Call: c.Sent, Return: ended,
		})
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	return groups, names, lines.Err()
}

// pruned leaves out calls without an answer that need not have happened and of which nothing can be told: those that write nothing,
// and those that only put strings or objects (each value is written once in a history) which no answer shows. Whoever came upon such a
// value without showing it either wrote over it whatever it was, or got no answer itself and may have come later. So with such a
// call the history can be put in order exactly if it can without; and each call without an answer doubles the work.
func pruned(history []porcupine.Operation) []porcupine.Operation {
	shown := map[string]bool{}
	for _, o := range history {
		if a := o.Output.(*answer); a != nil {
			a.show(shown)
		}
	}
	var kept []porcupine.Operation
	for _, o := range history {
		if o.Output.(*answer) != nil || o.Input.(*call).leavesTraces(shown) {
			kept = append(kept, o)
		}
	}
	return kept
}

func (a *answer) show(shown map[string]bool) {
	if a.Rollback != nil {
		shown[text(a.Rollback.Value)] = true
	}
	for _, r := range a.Results {
		shown[text(r.Value)] = true
		for _, row := range r.Rows {
			shown[text(row.Value)] = true
		}
	}
}

func (c *call) leavesTraces(shown map[string]bool) bool {
	for _, o := range c.Ops {
		switch o.Op {
		case "get", "getMany", "check":
		case "put", "putIfAbsent":
			if _, counts := number(text(o.Value)); counts || shown[text(o.Value)] {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// prepare checks what the model relies on.
func (c *call) prepare() error {
	if len(c.Ops) == 0 {
		return fmt.Errorf("a call without ops")
	}
	if c.Answer != nil {
		if c.Ended == nil || *c.Ended < c.Sent {
			return fmt.Errorf("answered before it was sent")
		}
		if c.Answer.Rollback == nil && len(c.Answer.Results) != len(c.Ops) {
			return fmt.Errorf("%d ops and %d results", len(c.Ops), len(c.Answer.Results))
		}
	}
	written := map[int]bool{}
	for i, o := range c.Ops {
		keys := o.Keys
		if o.Op != "getMany" {
			keys = []int{o.Key}
		}
		for _, key := range keys {
			if key < 0 || key >= keysMax {
				return fmt.Errorf("key %d", key)
			}
		}
		switch o.Op {
		case "get", "getMany":
		case "put", "putIfAbsent", "delete", "incr", "check":
			if written[o.Key] {
				return fmt.Errorf("two writes or checks of one key")
			}
			written[o.Key] = true
		default:
			return fmt.Errorf("unknown op %q", o.Op)
		}
		c.order = append(c.order, i)
	}
	sort.SliceStable(c.order, func(a, b int) bool {
		one, other := c.Ops[c.order[a]], c.Ops[c.order[b]]
		if (one.Op == "getMany") != (other.Op == "getMany") {
			return other.Op == "getMany"
		}
		return one.Op != "getMany" && one.Key < other.Key
	})
	return nil
}

// text is a JSON value as the model compares it: compact, absent as null.
func text(value json.RawMessage) string {
	if len(value) == 0 {
		return "null"
	}
	var out bytes.Buffer
	if json.Compact(&out, value) != nil {
		return string(value)
	}
	return out.String()
}

// number reads a value that incr counts on.
func number(value string) (int64, bool) {
	n, err := strconv.ParseInt(value, 10, 64)
	return n, err == nil
}
