//go:build cgo && linux

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"ipoibd/hca"
)

// Device is an open context of libibverbs.
type Device struct {
	life
	ctx     *C.struct_ibv_context
	sysfs   *os.Root // directory of the device
	attr    hca.DeviceAttr
	maxGIDs int // entries of the GID tables of all ports
	async   asyncReader

	fillsCsum bool // in messages of IPv4
}

var _ hca.Device = (*Device)(nil)

// Open opens the kernel's device with this name, such as "mlx5_0" or "rxe0". It may block.
// It returns [hca.ErrNoDevice] if there is no such device, if libibverbs is not installed,
// and in a build without cgo. PCIAddr and Parent of its attributes are empty: package rdma knows them.
func Open(name string) (hca.Device, error) {
	if err := load(); err != nil {
		return nil, refused(verbOpen, name, err)
	}
	sysfs, err := openSysfs(name)
	if err != nil {
		return nil, err
	}
	d := &Device{sysfs: sysfs}
	verbs, err := verbsOf(sysVerbs, name)
	if err == nil {
		err = d.open(name, verbs)
	}
	if err != nil {
		_ = sysfs.Close()
		return nil, err
	}
	return d, nil
}

// open opens a verbs interface.
func (d *Device) open(name, verbs string) (err error) {
	cverbs := C.CString(verbs)
	defer C.free(unsafe.Pointer(cverbs))
	if d.ctx, err = C.shim_open(cverbs); d.ctx == nil {
		return unopened(failedNull(verbOpen, name, err), devInfiniband, verbs)
	}
	if err := d.inquire(name); err != nil {
		C.shim_close(d.ctx)
		return err
	}
	return nil
}

// inquire queries the attributes that do not change, and creates the waiter for events.
func (d *Device) inquire(name string) (err error) {
	var a C.struct_ibv_device_attr
	if err := failed("query_device", name, errno(C.shim_query_device(d.ctx, &a))); err != nil {
		return err
	}
	d.attr, d.fillsCsum = deviceAttr(name, &a), fillsCsum(&a)
	for port := range d.attr.Ports {
		p, err := d.portAttr(port + 1)
		if err != nil {
			return err
		}
		d.maxGIDs += int(p.gid_tbl_len)
	}
	d.async.waiter, err = newWaiter(int(d.ctx.async_fd), "async events of "+name)
	return refused(verbOpen, name, err)
}

// Attr implements [hca.Device].
func (d *Device) Attr() hca.DeviceAttr { return d.attr }

// Counters implements [hca.Device]. It returns the kernel's counters of the ports, and the
// number of dropped events whose type is not in the contract.
func (d *Device) Counters() []hca.Counter {
	unknown := hca.Counter{Name: "events_unknown", Kind: hca.CountError, Value: d.async.unknown.Load()}
	return append(portCounters(d.sysfs.FS()), unknown)
}

// Close implements [hca.Device].
func (d *Device) Close() error {
	return refused("close_device", d.attr.Name, d.close(func() error {
		err := errors.Join(d.async.close(), d.sysfs.Close())
		if e := failed("close_device", d.attr.Name, errno(C.shim_close(d.ctx))); e != nil {
			return e
		}
		return err
	}))
}

// generations numbers the CQs and QPs of all devices of this process.
var generations atomic.Uint32

// AllocPD implements [hca.Device].
func (d *Device) AllocPD() (hca.PD, error) {
	if err := d.enter(); err != nil {
		return nil, refused("alloc_pd", d.attr.Name, err)
	}
	defer d.leave()
	pd, err := C.shim_alloc_pd(d.ctx)
	if pd == nil {
		return nil, failedNull("alloc_pd", d.attr.Name, err)
	}
	d.adopt()
	return &PD{dev: d, pd: pd}, nil
}
