import { Component, h, type ComponentType, type FunctionComponent } from 'preact';

/** Renders a component again only if its properties are not alike. */
export function memo<P extends object>(inner: FunctionComponent<P>, alike: (a: P, b: P) => boolean): ComponentType<P> {
  return class extends Component<P> {
    override shouldComponentUpdate(next: P) {
      return !alike(this.props, next);
    }
    override render() {
      return h(inner as ComponentType<P>, this.props as P & { children?: never });
    }
  } as unknown as ComponentType<P>;
}
