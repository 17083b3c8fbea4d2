package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each row of the tables of counters.md has a counter of its own with a meaning.
func TestRowsOfCounters(t *testing.T) {
	_, tables, found := strings.Cut(page, "\n## Counters of an interface\n")
	if !found {
		t.Fatal("counters.md has no table of the counters of an interface")
	}
	row := regexp.MustCompile("^\\| `[a-z_]+\\*?` \\| [^|]*[^ |] \\|\n$")
	n := 0
	for line := range strings.Lines(tables) {
		if !strings.HasPrefix(line, "|") || line == "| counter | meaning |\n" || line == "|---|---|\n" {
			continue
		}
		if n++; !row.MatchString(line) {
			t.Errorf("counters.md: %q is no row with a counter and its meaning", line)
		}
	}
	ofInterface, ofDevice := meanings()
	if len(ofInterface) < 100 || len(ofDevice) < 60 || len(ofInterface)+len(ofDevice) != n {
		t.Errorf("%d counters of an interface and %d of a device in %d rows", len(ofInterface), len(ofDevice), n)
	}
}

// Each counter with a constant has a meaning.
func TestConstantsHaveMeanings(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "counters.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for c := range ast.Preorder(file) {
		spec, ok := c.(*ast.ValueSpec)
		if !ok {
			continue
		}
		name := spec.Names[0].Name
		counter, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		meaning := DeviceCounter
		if strings.HasPrefix(name, "Interface") {
			meaning = InterfaceCounter
		}
		if n++; meaning(counter) == "" {
			t.Errorf("counters.md does not describe %s, which is %s", counter, name)
		}
	}
	if n < 30 {
		t.Errorf("found %d constants", n)
	}
}

func TestMeaningsOfCounters(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{InterfaceCounter("tx_read"), "frames read from ib0"},
		{InterfaceCounter("rx_drop_too_long"), "longer than the group's MTU"},
		{InterfaceCounter("tx_wc_loc_prot_err"), "the send failed, by completion status, such as tx_wc_wr_flush_err"},
		{InterfaceCounter("tap_bytes_64_127"), "passed frames by length in bytes"},
		{InterfaceCounter("neigh_drop_unresolved"), "the destination did not answer"},
		{DeviceCounter("rx_drop_no_qp"), "no queue pair has that number"},
		{DeviceCounter("wire_tx_drop_no_device"), "the underlay is gone"},
		{DeviceCounter("port1_counter_of_some_driver"), ""},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestLost(t *testing.T) {
	for name, want := range map[string]bool{
		"rx_drop_icrc": true, "wire_socket_drops": true, "kernel_tx_dropped": true, "kernel_rx_errors": true,
		"tx_wc_rem_op_err": true, "rx_wc_wr_flush_err": false, "rx_other_pkey": false, "wire_icmp_errors": false,
		"tx_sent": false, "port1_counter_of_some_driver": false,
	} {
		if got := Lost(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
