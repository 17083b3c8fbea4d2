package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/sandbox"
)

// runAs returns the user as whom the daemon runs if root starts it; nil: root.
func (f *runFlags) runAs(cfg *config.Config, needs sandbox.Policy, chosen bool) (*sandbox.User, error) {
	name := f.user
	if !chosen {
		// Without udev, only root may open the TUN device.
		if tun, err := os.Stat("/dev/net/tun"); needs.NeedsRoot() || !sandbox.CanLeaveRoot() || err == nil && tun.Mode().Perm()&0o006 != 0o006 {
			return nil, nil
		}
		if uid, ok := listenerOf(cfg.Control); ok && f.takeOver { // a daemon is taken over by one of the same user
			giver, err := osuser.LookupId(strconv.Itoa(uid))
			if err != nil {
				return nil, err
			}
			name = giver.Username
		}
	}
	switch {
	case name == "root":
		return nil, nil
	case needs.NeedsRoot():
		return nil, fmt.Errorf("user %s cannot reset a device with reset: driver or pci, because only root may write to its files in /sys", name)
	}
	found, err := sandbox.LookupUser(name)
	if _, unknown := errors.AsType[osuser.UnknownUserError](err); unknown && !chosen {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--user: %w", err)
	}
	return found, nil
}

// listenerOf returns the user who has made a control socket, and whether no other user could have: one who can
// would choose as whom the daemon runs.
func listenerOf(socket string) (uid int, ok bool) {
	dir, errDir := os.Lstat(filepath.Dir(socket))
	info, err := os.Lstat(socket)
	if err != nil || errDir != nil || info.Mode().Type() != fs.ModeSocket || dir.Mode().Perm()&0o022 != 0 {
		return 0, false
	}
	user, creator := info.Sys().(*syscall.Stat_t).Uid, dir.Sys().(*syscall.Stat_t).Uid
	return int(user), creator == user || creator == 0
}
