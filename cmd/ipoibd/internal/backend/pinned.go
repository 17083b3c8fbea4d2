package backend

import (
	"runtime"
	"sync"

	"ipoibd/hca"
)

// pinned returns an opener like open, but the thread that opens a device lives until the device
// is closed. The kernel tracks contexts by the thread that opened them; without that thread, a
// context that a stuck verb keeps open would look like another process's (rdma.Processes).
func pinned(open func(name string) (hca.Device, error)) func(name string) (hca.Device, error) {
	return func(name string) (hca.Device, error) {
		type result struct {
			dev hca.Device
			err error
		}
		opened, closed := make(chan result, 1), make(chan struct{})
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			dev, err := open(name)
			opened <- result{dev, err}
			if err == nil {
				<-closed
			}
		}()
		r := <-opened
		if r.err != nil {
			return nil, r.err
		}
		return &pinnedHCA{r.dev, sync.OnceFunc(func() { close(closed) })}, nil
	}
}

// pinnedHCA is a device whose thread waits for unpin.
type pinnedHCA struct {
	hca.Device
	unpin func()
}

// Close implements hca.Device. A device that could not be closed keeps its thread.
func (d *pinnedHCA) Close() error {
	err := d.Device.Close()
	if err == nil {
		d.unpin()
	}
	return err
}
