#!/bin/sh
# As much of systemctl as kubeadm asks for: it runs one service, the kubelet.
pid_file=/run/kubelet.pid

is_active() {
  [ -e $pid_file ] && kill -0 "$(cat $pid_file)" 2>/dev/null
}

stop() {
  is_active && kill "$(cat $pid_file)"
  while is_active; do sleep 0.1; done
  rm -f $pid_file
}

case "$1 ${2%.service}" in
"daemon-reload " | "is-enabled kubelet") ;;
"status kubelet") echo "kubelet.service - loaded" ;;
"is-active kubelet") is_active && echo active || exit 3 ;;
"stop kubelet") stop ;;
"start kubelet" | "restart kubelet")
  stop
  . /var/lib/kubelet/kubeadm-flags.env
  . /etc/default/kubelet
  setsid kubelet \
    --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
    --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS \
    >>/var/log/kubelet.log 2>&1 </dev/null &
  echo $! >$pid_file
  ;;
*) exit 3 ;; # not there
esac
