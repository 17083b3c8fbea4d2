package capture

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/hca"
	"ipoibd/ud"
	"ipoibd/ud/record"
)

// source is an interface with three producers, to which a test gives packets.
type source struct {
	mu   sync.Mutex
	set  []ud.Recorder
	gone chan struct{}
}

func newSource() *source { return &source{gone: make(chan struct{})} }

func (*source) Name() string            { return "ib0" }
func (*source) Producers() int          { return 3 }
func (s *source) Done() <-chan struct{} { return s.gone }

func (s *source) Record(set []ud.Recorder) (end func()) {
	s.use(set)
	return func() { s.use(nil) }
}

func (s *source) use(set []ud.Recorder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set = set
}

func (*source) Origin() *record.Origin {
	return &record.Origin{GID: hca.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), QPN: 7, QKey: 0xb1b, PKey: 0xffff}
}

type ah struct{}

func (ah) Spec() hca.AHSpec {
	return hca.AHSpec{Global: true, DGID: hca.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))}
}
func (ah) Close() error { return nil }

// icmp is an IPoIB message: ICMP over IPv4.
var icmp = append([]byte{8, 0, 0, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2}, make([]byte, 8)...)

// sent gives the first producer n messages, numbered in their last byte.
func (s *source) sent(at time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range n {
		msg := bytes.Clone(icmp)
		msg[len(msg)-1] = byte(i)
		s.set[0].Sent(at, &hca.SendWR{UD: hca.UDDest{AH: ah{}, QPN: 9}}, msg)
	}
	s.set[0].Done()
}

// output is a file in memory.
type output struct {
	bytes.Buffer
	err   error
	stall chan struct{} // holds up each write, if not nil
	first func()        // called before the first write, if not nil
}

func (o *output) Write(b []byte) (int, error) {
	if o.first != nil {
		o.first()
		o.first = nil
	}
	if o.stall != nil {
		<-o.stall
	}
	if o.err != nil {
		return 0, o.err
	}
	return o.Buffer.Write(b)
}

func (*output) Flush() error { return nil }

// file is a capture file as another reader of the format sees it.
type readFile struct {
	packets  [][]byte
	lengths  []int
	lost     uint64
	ifaces   []pcapgo.NgInterface
	byIface  []int
	outbound int
}

func read(t *testing.T, file []byte) (f readFile) {
	t.Helper()
	options := pcapgo.DefaultNgReaderOptions
	options.WantMixedLinkType = true
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), options)
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, opts, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		f.packets, f.lengths = append(f.packets, data), append(f.lengths, info.Length)
		f.byIface = append(f.byIface, info.InterfaceIndex)
		if opts.DropCount != nil {
			f.lost += *opts.DropCount
		}
		if opts.Flags != nil && opts.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound {
			f.outbound++
		}
	}
	for i := range r.NInterfaces() {
		it, err := r.Interface(i)
		if err != nil {
			t.Fatal(err)
		}
		f.ifaces = append(f.ifaces, it)
	}
	return f
}

// running runs a capture in a bubble; end ends it and waits.
func running(ctx context.Context, src *source, q Request, out *output) (wait func() (Summary, error)) {
	var sum Summary
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		sum, err = Run(ctx, src, q, out)
	}()
	synctest.Wait()
	return func() (Summary, error) { <-done; return sum, err }
}

func TestRunWritesAndCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		src, out := newSource(), &output{}
		wait := running(ctx, src, Request{Levels: []string{"roce", "ipoib", "ethernet"}, Filter: "icmp"}, out)
		src.sent(time.Now(), 5)
		time.Sleep(2 * settle)
		synctest.Wait()
		if n := len(read(t, out.Bytes()).packets); n != 10 {
			t.Errorf("%d packets while it runs, want 5 at two levels", n)
		}
		src.sent(time.Now(), 1)
		cancel()
		sum, err := wait()
		if err != nil || sum != (Summary{Packets: 12}) {
			t.Errorf("%+v, %v", sum, err)
		}
		f := read(t, out.Bytes())
		if len(f.packets) != 12 || f.outbound != 12 || f.lost != 0 || len(f.ifaces) != 3 {
			t.Fatalf("%d packets, %d of them outbound, %d interfaces", len(f.packets), f.outbound, len(f.ifaces))
		}
		for i, want := range []struct {
			name     string
			received uint64
		}{{"ib0 roce", 6}, {"ib0 ipoib", 6}, {"ib0 ethernet", 0}} {
			it := f.ifaces[i]
			if it.Name != want.name || it.Filter != "icmp" || it.Statistics.PacketsReceived != want.received || it.Statistics.PacketsDropped != 0 {
				t.Errorf("interface %+v, want %+v", it, want)
			}
		}
		if src.set != nil {
			t.Error("still recording")
		}
	})
}

// Records of different producers appear in the order of their times, although an answer may be
// recorded before the send that it answers.
func TestRunOrdersByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		src, out := newSource(), &output{}
		wait := running(ctx, src, Request{Levels: []string{"ethernet"}}, out)
		frame := func(n byte) []byte { return append(make([]byte, 10+14), n) }
		early := time.Now()
		time.Sleep(settle / 4)
		src.set[1].ToHost(time.Now(), [][]byte{frame(2)})
		src.set[1].Done()
		synctest.Wait()
		src.set[0].FromHost(early, frame(1))
		src.set[0].Done()
		time.Sleep(2 * settle)
		cancel()
		if _, err := wait(); err != nil {
			t.Fatal(err)
		}
		f := read(t, out.Bytes())
		if len(f.packets) != 2 || f.packets[0][14] != 1 || f.packets[1][14] != 2 {
			t.Errorf("packets %x, want 1 before 2", f.packets)
		}
	})
}

func TestRunEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		q    Request
		end  func(*source)
		want uint64
	}{
		"count":     {Request{Count: 3}, func(*source) {}, 3},
		"duration":  {Request{Duration: 2.5}, func(*source) {}, 5},
		"interface": {Request{}, func(s *source) { close(s.gone) }, 5},
		"direction": {Request{Direction: DirectionIn, Duration: 1}, func(*source) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, out := newSource(), &output{}
				began := time.Now()
				wait := running(t.Context(), src, tt.q, out)
				src.sent(time.Now(), 5)
				tt.end(src)
				sum, err := wait()
				if err != nil || sum.Packets != tt.want || len(read(t, out.Bytes()).packets) != int(tt.want) {
					t.Errorf("%+v, %v, want %d packets", sum, err, tt.want)
				}
				if took := time.Since(began).Seconds(); tt.q.Duration != 0 && took != tt.q.Duration {
					t.Errorf("took %v s", took)
				}
			})
		})
	}
}

// A reader that stops does not hold up the producers: packets are lost, and counted in the file.
func TestRunCountsLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		src, out := newSource(), &output{}
		wait := running(ctx, src, Request{}, out)
		stall := make(chan struct{})
		out.stall = stall
		src.sent(time.Now(), 1)
		const packets = 100_000
		src.sent(time.Now(), packets)
		time.Sleep(time.Minute)
		close(stall)
		time.Sleep(10 * settle)
		src.sent(time.Now(), 1) // this one says how many were lost before it
		cancel()
		sum, err := wait()
		f := read(t, out.Bytes())
		s := f.ifaces[0].Statistics
		if err != nil || sum.Lost == 0 || sum.Packets == 0 || sum.Packets+sum.Lost != packets+2 {
			t.Errorf("%+v, %v, want %d in total", sum, err, packets+2)
		}
		if s.PacketsReceived != packets+2 || s.PacketsDropped != sum.Lost || f.lost != sum.Lost || uint64(len(f.packets)) != sum.Packets {
			t.Errorf("%d packets, %d lost before them, statistics %+v, want %+v", len(f.packets), f.lost, s, sum)
		}
		t.Logf("%+v", sum)
	})
}

func TestRunSnaplen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, out := newSource(), &output{}
		wait := running(t.Context(), src, Request{Levels: []string{"roce"}, Snaplen: 64, Count: 1}, out)
		src.sent(time.Now(), 1)
		if _, err := wait(); err != nil {
			t.Fatal(err)
		}
		if f := read(t, out.Bytes()); len(f.packets[0]) != 64 || f.lengths[0] != 20+8+20+32+4 || f.ifaces[0].SnapLength != 64 {
			t.Errorf("%d bytes of %d, snapshot length %d", len(f.packets[0]), f.lengths[0], f.ifaces[0].SnapLength)
		}
	})
}

// A packet that passes when the beginning of the file arrives is captured: a program that waits for the file may begin
// to send.
func TestRunRecordsBeforeItWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		out := &output{first: func() { src.sent(time.Now(), 1) }}
		ctx, cancel := context.WithCancel(t.Context())
		wait := running(ctx, src, Request{Levels: []string{"ipoib"}}, out)
		cancel()
		if sum, err := wait(); err != nil || sum.Packets != 1 {
			t.Errorf("%+v, %v, want 1 packet", sum, err)
		}
	})
}

// A client that has gone ends the capture, which then uses no memory.
func TestRunEndsWithItsOutput(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	synctest.Test(t, func(t *testing.T) {
		src, out := newSource(), &output{}
		wait := running(t.Context(), src, Request{}, out)
		if used := heap() - before; used < maxBytes || used > 2*maxBytes {
			t.Errorf("%d bytes in use, want at least %d and at most twice as many", used, maxBytes)
		}
		out.err = io.ErrClosedPipe
		src.sent(time.Now(), 1)
		if _, err := wait(); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error %v", err)
		}
		if src.set != nil {
			t.Error("still recording")
		}
	})
	if after := heap(); after > before+maxBytes/4 {
		t.Errorf("%d bytes in use, %d before the capture", after, before)
	}
}
