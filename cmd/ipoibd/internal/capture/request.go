package capture

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/bpf"

	"ipoibd/ud/record"
)

// Bounds of a request.
const (
	MaxCaptures     = 4       // at a time
	MaxSnaplen      = 1 << 18 // bytes, as in tcpdump: more than any packet
	MinSnaplen      = 64      // bytes
	maxInstructions = 4096    // BPF_MAXINSNS of linux/bpf_common.h
	maxFilterText   = 4096    // bytes
)

// Directions of a request.
const (
	DirectionIn   = "in"
	DirectionOut  = "out"
	DirectionBoth = "both"
)

// Request says what to capture. Zero values mean the defaults.
type Request struct {
	Interface string   `json:"interface,omitempty"` // empty: the only one
	Levels    []string `json:"levels,omitempty"`    // names of [record.Level]; none: ipoib
	Snaplen   int      `json:"snaplen,omitempty"`   // bytes of each packet to write; 0: all
	Direction string   `json:"direction,omitempty"` // in, out or both; empty: both
	Count     uint64   `json:"count,omitempty"`     // packets after which the capture ends; 0: no limit
	Duration  float64  `json:"duration,omitempty"`  // seconds after which it ends; 0: no limit
	BPF       string   `json:"bpf,omitempty"`       // a filter for Ethernet frames, as tcpdump -ddd prints it
	Filter    string   `json:"filter,omitempty"`    // what BPF was compiled from; only for the file
}

// spec is a checked request.
type spec struct {
	levels   []record.Level
	snaplen  int
	in, out  bool
	count    uint64
	duration time.Duration
	vm       *bpf.VM // nil: no filter
	filter   string
}

// Check returns an error that says what is wrong with the request.
func (q *Request) Check() error {
	_, err := q.parse()
	return err
}

func (q *Request) parse() (s spec, err error) {
	s = spec{snaplen: q.Snaplen, count: q.Count, filter: q.Filter}
	if s.snaplen == 0 {
		s.snaplen = MaxSnaplen
	}
	if s.snaplen < MinSnaplen || s.snaplen > MaxSnaplen {
		return s, fmt.Errorf("snapshot length %d is not between %d and %d", q.Snaplen, MinSnaplen, MaxSnaplen)
	}
	for _, name := range q.Levels {
		l, ok := record.ParseLevel(name)
		if !ok {
			return s, fmt.Errorf("unknown level %q; use one of %s", name, strings.Join(record.Levels(), ", "))
		}
		if slices.Contains(s.levels, l) {
			return s, fmt.Errorf("level %s is given twice", name)
		}
		s.levels = append(s.levels, l)
	}
	if len(s.levels) == 0 {
		s.levels = []record.Level{record.IPoIB}
	}
	switch q.Direction {
	case "", DirectionBoth:
		s.in, s.out = true, true
	case DirectionIn:
		s.in = true
	case DirectionOut:
		s.out = true
	default:
		return s, fmt.Errorf("unknown direction %q; use %s, %s or %s",
			q.Direction, DirectionIn, DirectionOut, DirectionBoth)
	}
	const longest = 365 * 24 * 60 * 60 // seconds
	if !(q.Duration >= 0 && q.Duration <= longest) {
		return s, errors.New("the duration is negative, or longer than a year")
	}
	s.duration = time.Duration(q.Duration * float64(time.Second))
	if len(q.Filter) > maxFilterText {
		return s, fmt.Errorf("the filter is longer than %d bytes", maxFilterText)
	}
	s.vm, err = compile(q.BPF)
	return s, err
}

// compile returns the program of a text as printed by tcpdump -ddd: the number of instructions,
// then one instruction of four decimal numbers per line. Commas may replace the ends of lines,
// as nfbpf_compile prints it. An empty text is no program.
func compile(text string) (*bpf.VM, error) {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ',' })
	if len(lines) == 0 {
		return nil, nil
	}
	n, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || n != len(lines)-1 || n > maxInstructions {
		return nil, fmt.Errorf("the filter is not a BPF program of at most %d instructions, "+
			"as 'tcpdump -ddd' prints it", maxInstructions)
	}
	program := make([]bpf.Instruction, 0, n)
	for i, line := range lines[1:] {
		raw, err := parseInstruction(line)
		if err != nil {
			return nil, fmt.Errorf("instruction %d of the filter: %w", i, err)
		}
		program = append(program, raw.Disassemble())
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	return vm, nil
}

func parseInstruction(line string) (raw bpf.RawInstruction, err error) {
	fields := strings.Fields(line)
	if len(fields) != 4 {
		return raw, fmt.Errorf("%q is not four numbers", line)
	}
	var values [4]uint64
	for i, size := range []int{16, 8, 8, 32} {
		if values[i], err = strconv.ParseUint(fields[i], 10, size); err != nil {
			return raw, err
		}
	}
	return bpf.RawInstruction{
		Op: uint16(values[0]),
		Jt: uint8(values[1]),
		Jf: uint8(values[2]),
		K:  uint32(values[3]),
	}, nil
}
