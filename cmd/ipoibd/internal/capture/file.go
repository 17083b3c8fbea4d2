package capture

import (
	"bufio"
	"errors"
	"fmt"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/ud/record"
)

// writeSize is the size of a write to the output in bytes.
const writeSize = 64 << 10

// descriptions say in the file how the packets of a level came about.
var descriptions = [record.NumLevel]string{
	record.Ethernet: "Ethernet frames of the TAP",
	record.IPoIB:    "IPoIB datagrams; the GRH of sends is built from the address handle",
	record.RoCE: "RoCEv2 datagrams; headers and ICRC are built from the address handle or the completion. " +
		"Zero because unknown: UDP source port, PSN, IPv4 identification of sends, UDP checksum over IPv4",
	record.InfiniBand: "InfiniBand packets; headers and ICRC are built from the address handle or the completion. " +
		"Zero because unknown: virtual lane, PSN, VCRC",
}

// file writes a pcapng file. Each level is an interface of it.
type file struct {
	out     Output
	ng      *pcapgo.NgWriter
	levels  []record.Level
	written []uint64 // packets, by level
	total   uint64   // packets
	limit   uint64   // of total; 0: none
	snaplen int
	began   time.Time
	builder record.Builder
}

// newFile returns a file whose beginning the first flush writes.
func newFile(out Output, name string, s *spec) (*file, error) {
	f := &file{
		out: out, levels: s.levels, written: make([]uint64, len(s.levels)), limit: s.count,
		snaplen: s.snaplen, began: time.Now(),
	}
	options := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "ipoibd capture"}}
	for i, l := range s.levels {
		it := pcapgo.NgInterface{
			Name: fmt.Sprintf("%s %s", name, l), Description: descriptions[l], Filter: s.filter,
			LinkType: layers.LinkType(l.LinkType()), SnapLength: uint32(s.snaplen),
		}
		var err error
		if i == 0 {
			f.ng, err = pcapgo.NewNgWriterInterface(bufio.NewWriterSize(out, writeSize), it, options)
		} else {
			_, err = f.ng.AddInterface(it)
		}
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// errFull ends the writing of a record whose other packets do not fit.
var errFull = errors.New("packet limit reached")

// write writes the packets of a record at each level.
func (f *file) write(r *record.Record) error {
	flags := pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}
	if r.Out {
		flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	for i, l := range f.levels {
		if l.Kind() != r.Kind {
			continue
		}
		options := pcapgo.NgPacketOptions{Flags: &flags}
		if r.Lost > 0 {
			options.DropCount = &r.Lost
		}
		err := f.builder.Build(r, l, func(packet []byte) error {
			if f.full() {
				return errFull
			}
			n := min(len(packet), f.snaplen)
			info := gopacket.CaptureInfo{
				Timestamp:      time.Unix(0, r.At),
				CaptureLength:  n,
				Length:         len(packet),
				InterfaceIndex: i,
			}
			err := f.ng.WritePacketWithOptions(info, packet[:n], options)
			options.DropCount = nil // for the first one only
			f.written[i]++
			f.total++
			return err
		})
		if err != nil && !errors.Is(err, errFull) {
			return err
		}
	}
	return nil
}

// full reports whether the file has as many packets as requested.
func (f *file) full() bool { return f.limit > 0 && f.total >= f.limit }

func (f *file) flush() error {
	if err := f.ng.Flush(); err != nil {
		return err
	}
	return f.out.Flush()
}

// finish writes the totals. lost returns how many packets of a kind were lost.
func (f *file) finish(lost func(record.Kind) uint64) error {
	now := time.Now()
	for i, l := range f.levels {
		n := lost(l.Kind())
		err := f.ng.WriteInterfaceStats(i, pcapgo.NgInterfaceStatistics{
			LastUpdate: now, StartTime: f.began, EndTime: now, PacketsReceived: f.written[i] + n, PacketsDropped: n,
		})
		if err != nil {
			return err
		}
	}
	return f.flush()
}
