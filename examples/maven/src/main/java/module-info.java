module hello {
  requires io.syncline;
}
