package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	osuser "os/user"
	"strconv"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/sandbox"
)

// runAs returns the user as whom the daemon runs if root starts it; nil: root.
func (f *runFlags) runAs(cfg *config.Config, needs sandbox.Policy, chosen bool) (*sandbox.User, error) {
	name := f.user
	if !chosen {
		// Without udev, only root may open the TUN device.
		tun, err := os.Stat("/dev/net/tun")
		rootOnly := err == nil && tun.Mode().Perm()&0o006 != 0o006
		if rootOnly || needs.NeedsRoot() || !sandbox.CanLeaveRoot() {
			return nil, nil
		}
		if f.takeOver { // a daemon is taken over by one of the same user
			uid, err := sandbox.SocketUser(cfg.Control)
			if err == nil && uid == 0 {
				return nil, nil
			}
			var giver *osuser.User
			if err == nil {
				giver, err = osuser.LookupId(strconv.Itoa(uid))
			}
			switch {
			case err == nil:
				name = giver.Username
			case !errors.Is(err, fs.ErrNotExist):
				return nil, fmt.Errorf("cannot determine the user of the running daemon: %w; "+
					"name that user with --user", err)
			}
		}
	}
	switch {
	case name == "root":
		return nil, nil
	case needs.NeedsRoot():
		return nil, fmt.Errorf("user %s cannot reset a device with reset: driver or pci, "+
			"because only root may write to its files in /sys", name)
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
