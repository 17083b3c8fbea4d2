package bpf

import "fmt"

// Kind is a kind of frames that the filter tells apart.
type Kind int

// Kinds of frames. All but Passed are dropped.
const (
	Passed    Kind = iota // IPv4, IPv6, ARP and RARP
	Runt                  // shorter than an Ethernet header
	VLAN                  // IEEE 802.1Q or 802.1ad
	LLC                   // with a length instead of a type (IEEE 802.3), as STP
	LLDP                  // IEEE 802.1AB
	PPPoE                 // RFC 2516
	OtherType             // any other type
	NumKind
)

// FilterCounts are what a filter has counted since it was loaded.
type FilterCounts struct {
	Kinds [NumKind]uint64
	// Segments and Bytes are distributions of the passed frames: of the number of segments
	// into which the host leaves it to cut the frame (1 for a frame that is sent whole),
	// and of the length from the Ethernet header on.
	Segments, Bytes Histogram
}

// Filter is a program for TUNSETFILTEREBPF.
type Filter struct{ objects filterObjects }

// NewFilter loads a filter. Errors: ErrNotPermitted, ErrNotSupported, the verifier's.
func NewFilter() (*Filter, error) {
	spec, err := loadFilter()
	if err != nil {
		return nil, err
	}
	f := new(Filter)
	if err := load("filter", spec, &f.objects); err != nil {
		return nil, err
	}
	return f, nil
}

// FD returns the descriptor of the program, which is valid until Close. A TAP to which it is
// attached keeps the program.
func (f *Filter) FD() int { return f.objects.Filter.FD() }

// Counts returns the counts. Any goroutine may call it until Close.
func (f *Filter) Counts() (out FilterCounts, err error) {
	sum, err := readCounts(f.objects.Counts, func(sum, cpu *filterFilterCounts) {
		addTo(sum.Verdicts[:], cpu.Verdicts[:])
		addTo(sum.Segments[:], cpu.Segments[:])
		addTo(sum.Bytes[:], cpu.Bytes[:])
	})
	return FilterCounts{Kinds: sum.Verdicts, Segments: sum.Segments[:], Bytes: sum.Bytes[:]}, err
}

// Close releases the program and its counts. Idempotent.
func (f *Filter) Close() error {
	if err := f.objects.Close(); err != nil {
		return fmt.Errorf("close the eBPF filter: %w", err)
	}
	return nil
}
