package linktest

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"ipoibd/link"
)

// Defaults of a fake.
const (
	fakeIndex   = 7
	fakeMTU     = 1500
	queueLength = 1000 // frames each way; the kernel's default txqueuelen
	ethernetLen = 14   // bytes, the shortest frame that a TAP takes
)

// Fake is a TAP in memory and the host behind it. Any goroutine may call its methods.
type Fake struct {
	name     string
	toHost   chan []byte   // written frames that the host has not received
	fromHost chan []byte   // frames with virtio header, not yet read
	wake     chan struct{} // one pending Wake
	closed   chan struct{}
	gone     chan struct{} // closed by Delete

	mu       sync.Mutex
	own, now device // as the user of the device set it, and as it is now
	state    link.State
	count    link.Counters
	kernel   link.KernelCounters
	watchers map[chan link.State]struct{}
	ended    sync.WaitGroup

	groups []netip.Addr // that the host has joined

	published link.State // the state that the watchers received last
	joined    []byte     // working memory of WriteVectors
}

// device holds the properties that Inspect restores, except for the owner and the link type.
type device struct {
	mac        [6]byte // only used in own; the current MAC is in the state
	carrier    bool
	headerLen  int
	persistent bool
	offloads   link.Offloads
}

var (
	_ link.Device = (*Fake)(nil)
	_ Host        = (*Fake)(nil)
)

// NewFake returns a fake in the state after link.Open: down and without carrier.
func NewFake(name string) *Fake {
	mac := [6]byte{0x02, 0, 0, 0, 0, fakeIndex}
	set := device{mac: mac, headerLen: link.HeaderLen, persistent: true}
	f := &Fake{
		own:      set,
		now:      set,
		name:     name,
		toHost:   make(chan []byte, queueLength),
		fromHost: make(chan []byte, queueLength),
		wake:     make(chan struct{}, 1),
		closed:   make(chan struct{}),
		gone:     make(chan struct{}),
		watchers: map[chan link.State]struct{}{},
		state: link.State{
			Index: fakeIndex, Name: name, Present: true, MTU: fakeMTU,
			MAC:   mac,
			Alias: link.AliasPrefix, Addrs: []netip.Prefix{},
		},
	}
	f.published = f.copyState()
	return f
}

// WithMAC sets the MAC with which the fake was opened. Call it before any other method.
func (f *Fake) WithMAC(mac [6]byte) *Fake {
	f.own.mac = mac
	f.SetMAC(mac)
	return f
}

// Name implements [link.Device].
func (f *Fake) Name() string { return f.name }

// Queues implements [link.Device]: there is one.
func (f *Fake) Queues() []link.Queue { return []link.Queue{f} }

// ReadBatch implements [link.Device].
func (f *Fake) ReadBatch(bufs [][]byte, sizes []int) (int, error) {
	if err := f.err(); err != nil {
		return 0, err
	}
	for {
		select { // check wake first, so that the order in a test is deterministic
		case <-f.wake:
			return 0, nil
		default:
		}
		select {
		case <-f.closed:
			return 0, link.ErrClosed
		case <-f.gone:
			return 0, link.ErrGone
		case <-f.wake:
			return 0, nil
		case frame := <-f.fromHost:
			if n := f.fill(bufs, sizes, frame); n > 0 {
				return n, nil
			}
		}
	}
}

// fill stores a frame and the frames queued after it.
func (f *Fake) fill(bufs [][]byte, sizes []int, frame []byte) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if len(frame) > len(bufs[n]) {
			f.count.Drops.ReadTooLong++
		} else {
			sizes[n] = copy(bufs[n], frame)
			n++
			f.count.Read++
		}
		if n == len(bufs) {
			return n
		}
		select {
		case frame = <-f.fromHost:
		default:
			return n
		}
	}
}

// WriteVectors implements [link.Device].
func (f *Fake) WriteVectors(frames [][][]byte, accepted []bool) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(accepted[:len(frames)])
	if err := f.err(); err != nil {
		return 0, err
	}
	for k, parts := range frames {
		f.joined = f.joined[:0]
		for _, part := range parts {
			f.joined = append(f.joined, part...)
		}
		if len(parts) > link.MaxSlices {
			f.joined = f.joined[:0] // which is refused
		}
		if accepted[k] = f.write(f.joined); accepted[k] {
			n++
		}
	}
	f.count.Written += uint64(n)
	return n, nil
}

func (f *Fake) write(frame []byte) bool {
	switch {
	case len(frame) < link.HeaderLen+ethernetLen:
		f.count.Drops.WriteInvalid++
		return false
	case !f.state.Up:
		f.count.Drops.WriteDown++
		return false
	}
	select {
	case f.toHost <- slices.Clone(frame[link.HeaderLen:]):
		f.kernel.RxPackets++
		f.kernel.RxBytes += uint64(len(frame) - link.HeaderLen)
		return true
	default:
		f.count.Drops.WriteNoMem++
		return false
	}
}

// Wake implements [link.Device].
func (f *Fake) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// SetCarrier implements [link.Device].
func (f *Fake) SetCarrier(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err(); err != nil {
		return fmt.Errorf("set the carrier of %s: %w", f.name, err)
	}
	f.own.carrier, f.now.carrier = on, on
	f.changed()
	return nil
}

// SetOffloads implements [link.Device].
func (f *Fake) SetOffloads(want link.Offloads) (link.Offloads, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err(); err != nil {
		return f.own.offloads, fmt.Errorf("set the offloads of %s to %v: %w", f.name, want, err)
	}
	f.own.offloads = want.Possible()
	f.now.offloads = f.own.offloads
	return f.own.offloads, nil
}

// Inspect implements [link.Device].
func (f *Fake) Inspect() (found link.Findings, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err(); err != nil {
		return found, fmt.Errorf("inspect %s: %w", f.name, err)
	}
	found.Foreign = f.state.Foreign
	differs := func(what link.Property, was any, yes bool) {
		if yes {
			found.Restored = append(found.Restored, link.Change{What: what, Found: fmt.Sprint(was)})
		}
	}
	differs(link.PropertyHeader, f.now.headerLen, f.now.headerLen != f.own.headerLen)
	differs(link.PropertyPersistence, f.now.persistent, f.now.persistent != f.own.persistent)
	differs(link.PropertyOffloads, f.now.offloads, f.now.offloads&^f.own.offloads != 0)
	differs(link.PropertyMAC, f.state.MAC, f.state.MAC != f.own.mac)
	differs(link.PropertyCarrier, f.now.carrier, f.state.Up && f.now.carrier != f.own.carrier)
	f.now, f.state.MAC = f.own, f.own.mac
	f.changed()
	found.MTU, found.Carrier = f.state.MTU, f.state.Up && f.own.carrier
	return found, nil
}

// State implements [link.Device].
func (f *Fake) State() (link.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if isDone(f.closed) {
		return link.State{}, link.ErrClosed
	}
	return f.copyState(), nil
}

// Counters implements [link.Device].
func (f *Fake) Counters() link.Counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// KernelCounters implements [link.Device].
func (f *Fake) KernelCounters() (link.KernelCounters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kernel, f.err()
}

// Groups lists the multicast groups that the host has joined, as [link.TAP.Groups] does.
func (f *Fake) Groups() ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.groups), f.err()
}

// Close implements [link.Device].
func (f *Fake) Close() error {
	f.mu.Lock()
	if !isDone(f.closed) {
		f.own.carrier, f.now.carrier = false, false
		f.own.offloads, f.now.offloads = 0, 0
		close(f.closed)
	}
	f.mu.Unlock()
	f.ended.Wait()
	return nil
}

// Watch implements [link.Device].
func (f *Fake) Watch(ctx context.Context) (<-chan link.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if isDone(f.closed) {
		return nil, link.ErrClosed
	}
	out := make(chan link.State, 1)
	out <- f.copyState()
	f.watchers[out] = struct{}{}
	f.ended.Go(func() { f.endWatch(ctx, out) })
	return out, nil
}

func (f *Fake) endWatch(ctx context.Context, out chan link.State) {
	select {
	case <-ctx.Done():
	case <-f.closed:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, out)
	close(out)
}

// err returns the error of a device that is closed or deleted, else nil.
func (f *Fake) err() error {
	switch {
	case isDone(f.closed):
		return link.ErrClosed
	case isDone(f.gone):
		return link.ErrGone
	}
	return nil
}

// changed publishes the state if it differs from the last. The caller holds the lock.
func (f *Fake) changed() {
	f.state.Carrier = f.now.carrier && f.state.Up
	if reflect.DeepEqual(f.state, f.published) {
		return
	}
	f.published = f.copyState()
	for out := range f.watchers {
		select {
		case <-out:
		default:
		}
		out <- f.copyState()
	}
}

func (f *Fake) copyState() link.State {
	s := f.state
	s.Addrs, s.Above = slices.Clone(s.Addrs), slices.Clone(s.Above)
	return s
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
