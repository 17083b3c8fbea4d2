package transport_test

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

func upState() transport.State {
	return transport.State{
		Name: "eth0", Index: 7, Present: true, Up: true, MTU: 1500, MAC: [6]byte{2, 0, 0, 0, 0, 7},
		Addrs: []netip.Addr{netip.MustParseAddr("fe80::1")},
	}
}

// A change of any single field ends a wait, and returns the new state.
func TestMonitorReportsEachField(t *testing.T) {
	for i, edit := range []func(*transport.State){
		func(s *transport.State) { s.Name = "x" },
		func(s *transport.State) { s.Index++ },
		func(s *transport.State) { s.Present = false },
		func(s *transport.State) { s.Up = false },
		func(s *transport.State) { s.MTU++ },
		func(s *transport.State) { s.MAC[5]++ },
		func(s *transport.State) { s.Addrs = nil },
		func(s *transport.State) { s.Addrs = []netip.Addr{netip.MustParseAddr("fe80::2")} },
	} {
		synctest.Test(t, func(t *testing.T) {
			var m transport.Monitor
			m.Set(upState())
			m.State()
			next := upState()
			edit(&next)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if got, err := m.WaitChange(t.Context(), nil); err != nil || !reflect.DeepEqual(got, next) {
					t.Errorf("edit %d: %+v, %v, want %+v", i, got, err, next)
				}
			}()
			synctest.Wait()
			m.Set(upState()) // no change
			synctest.Wait()
			select {
			case <-done:
				t.Errorf("edit %d: the wait ended without a change", i)
			default:
			}
			m.Set(next)
			<-done
		})
	}
}

// A state that was not read ends a wait at once, even if it was undone.
func TestMonitorReportsUnreadState(t *testing.T) {
	var m transport.Monitor
	m.Set(upState())
	if got, err := m.WaitChange(t.Context(), nil); err != nil || !reflect.DeepEqual(got, upState()) {
		t.Errorf("first state: %+v, %v", got, err)
	}
	down := upState()
	down.Up = false
	m.Set(down)
	m.Set(upState())
	if got, err := m.WaitChange(t.Context(), nil); err != nil || !reflect.DeepEqual(got, upState()) {
		t.Errorf("a change that was undone: %+v, %v", got, err)
	}
}

func TestMonitorEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m transport.Monitor
		ctx, cancel := context.WithCancel(t.Context())
		closed := make(chan struct{})
		errs := make(chan error, 2)
		go func() {
			_, err := m.WaitChange(ctx, nil)
			errs <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("the context ended: %v", err)
		}
		go func() {
			_, err := m.WaitChange(t.Context(), closed)
			errs <- err
		}()
		synctest.Wait()
		close(closed)
		if err := <-errs; !errors.Is(err, hca.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		m.Set(upState())
		if _, err := m.WaitChange(t.Context(), closed); !errors.Is(err, hca.ErrClosed) {
			t.Errorf("closed before, with a state that was not read: %v", err)
		}
	})
}

// Neither the caller of Set nor that of State can change what others see.
func TestMonitorOwnsItsAddresses(t *testing.T) {
	var m transport.Monitor
	s := upState()
	m.Set(s)
	s.Addrs[0] = netip.Addr{}
	m.State().Addrs[0] = netip.Addr{}
	if got := m.State(); !reflect.DeepEqual(got, upState()) {
		t.Errorf("%+v, want %+v", got, upState())
	}
	if a := upState().Addrs[0]; !m.Has(a) || m.Has(a.Next()) {
		t.Errorf("has %v: %v, and the next: %v", a, m.Has(a), m.Has(a.Next()))
	}
}
