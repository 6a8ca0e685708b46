// The checker reads a history of KV calls, one JSON object a line, and says whether it is linearizable.
//
//	checker [-timeout 60s] history.jsonl
//
// Keys belong to groups; a call touches keys of one group only, and each group is checked by itself as one object, so calls with
// several keys must be atomic. Exit code 0: linearizable. 1: not, and the offending group's history is printed. 2: the file is not a
// history. 3: not decided in time.
package main

import (
	"flag"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	exitIllegal   = 1
	exitBadInput  = 2
	exitUndecided = 3
)

func main() {
	timeout := flag.Duration("timeout", 60*time.Second, "for each group")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: checker [-timeout 60s] history.jsonl")
		os.Exit(exitBadInput)
	}
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitBadInput)
	}
	groups, names, err := readHistory(file)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flag.Arg(0), err)
		os.Exit(exitBadInput)
	}
	code, calls, unknown := 0, 0, 0
	for _, name := range names {
		history := groups[name]
		calls += len(history)
		for _, o := range history {
			if o.Output.(*answer) == nil {
				unknown++
			}
		}
		switch porcupine.CheckOperationsTimeout(model(), pruned(history), *timeout) {
		case porcupine.Illegal:
			report(name, history, *timeout)
			os.Exit(exitIllegal)
		case porcupine.Unknown:
			fmt.Printf("UNDECIDED: group %s, %d calls, within %v\n", name, len(history), *timeout)
			code = exitUndecided
		}
	}
	if code == 0 {
		fmt.Printf("OK: %d calls in %d groups, %d without an answer\n", calls, len(names), unknown)
	}
	os.Exit(code)
}

// report prints a group's history in the order of the calls, marked with how far its longest linearization comes.
func report(name string, history []porcupine.Operation, timeout time.Duration) {
	_, info := porcupine.CheckOperationsVerbose(model(), pruned(history), timeout)
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	place := map[*call]int{}
	for i, o := range longest {
		place[o.Input.(*call)] = i + 1
	}
	fmt.Printf("NOT LINEARIZABLE: group %s, %d calls, of which at most %d can be put in order\n", name, len(history), len(longest))
	fmt.Println("place in that order (- none), then the call as recorded, by time sent:")
	sort.Slice(history, func(a, b int) bool { return history[a].Call < history[b].Call })
	for _, o := range history {
		c := o.Input.(*call)
		if n, ok := place[c]; ok {
			fmt.Printf("%5d %s\n", n, c.line)
		} else {
			fmt.Printf("    - %s\n", c.line)
		}
	}
}
